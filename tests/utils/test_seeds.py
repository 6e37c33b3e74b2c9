"""Streams depend only on their names, and building a module restores the global generator."""

from concurrent.futures import ThreadPoolExecutor

import torch

from fedbm.utils.seeds import derive, numpy_rng, seeded_modules, torch_rng


def test_streams_depend_only_on_their_names():
    first = torch.rand(3, generator=torch_rng(0, "client", 1, 2))
    torch.rand(3, generator=torch_rng(0, "client", 1, 3))
    assert torch.equal(first, torch.rand(3, generator=torch_rng(0, "client", 1, 2)))
    assert len({derive(0, "a"), derive(1, "a"), derive(0, "b"), derive(0, "a", 1), derive(0, "a", 11)}) == 5
    assert derive(0, "a") == 7606779636460171844, "results depend on this value, so it must never change"
    assert numpy_rng(3, "x").random() == numpy_rng(3, "x").random()


def test_building_modules_restores_the_global_generator():
    before = torch.get_rng_state()
    with seeded_modules(0, "body"):
        one = torch.nn.Linear(3, 3)
    with seeded_modules(0, "body"):
        two = torch.nn.Linear(3, 3)
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(before, torch.get_rng_state())


def test_threads_build_the_modules_that_one_thread_builds():
    def build(root):
        with seeded_modules(root, "body"):
            return torch.stack([torch.nn.Linear(300, 300).weight.sum() for _ in range(20)])

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(build, range(8)))
    assert all(torch.equal(found[root], build(root)) for root in range(8))
