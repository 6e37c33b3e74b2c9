"""The rules that a site can set: [policy] in its node.toml. `node/policy_checks.py` applies them."""

from __future__ import annotations

from dataclasses import dataclass

from fedbm.config.options import option


@dataclass(frozen=True)
class Policy:
    """[policy] in node.toml: what this site allows. The defaults are strict; a rehearsal is made with open rules."""

    approval: bool = option(True, "a person must approve each run here: fedbm federation approve")
    methods: str = option("all", "methods this site trains with, with commas, or all")
    max_rounds: int = option(1000, "the most rounds of a run", least=1)
    min_per_class: int = option(5, "least number of images of each class that this site has, in each split", least=1)
    scores: bool = option(True, "confusion matrices on this site's val and test images may leave")
    label_counts: bool = option(False, "the number of images per class may leave, for methods that need it")
    min_noise: float = option(0.0, "least noise multiplier of differential privacy; 0: a run may add no noise", least=0)
    max_epsilon: float | None = option(
        None, "largest ε over all runs on this site's data; then every run must add noise", above=0
    )
    delta: float = option(1e-5, "δ at which max_epsilon is checked", above=0, below=1)

    @property
    def method_names(self) -> list[str]:
        return [name.strip() for name in self.methods.split(",")]


OPEN_POLICY = Policy(approval=False, min_per_class=1, label_counts=True)  # for a rehearsal on one machine
