"""What `fedbm COMMAND --help` shows below the flags."""

RUN_EXAMPLES = """examples:
  fedbm run --data digits --method fedbm --clients 10 --beta 0.05 --rounds 50 --seed 0
  fedbm run --data ~/scans --size 64 --method fedavg          any folder of class/*.jpg
  fedbm run experiment.toml --seed 1                          flags win over the file
The same command again resumes an interrupted run, or shows a finished one.
"""

COMPARE_EXAMPLES = """examples:
  fedbm compare --data digits --methods fedavg,scaffold,fedbm --betas 0.05,0.1 --seeds 3
  fedbm compare shared.toml --methods all                     a file without [method] and seed
Runs that are finished are not computed again; the same command goes on after an interruption.
"""

REPRODUCE_EXAMPLES = """examples:
  fedbm reproduce                                             what there is to reproduce
  fedbm reproduce comparison-ham10000 --data-dir DIR --plan       how long it would take, and what is missing
  fedbm reproduce comparison-ham10000 --data-dir DIR --budget 25m --only beta=0.1 --only FedAvg,FedBM
  fedbm reproduce modules generator-terms --data-dir DIR --only beta=0.05
The same command again goes on where the budget ended; finished runs are not computed again.
"""

SWEEP_EXAMPLES = """examples:
  fedbm sweep grid.toml --seeds 3 --budget 1h
A file has [all] (settings by the names of the flags), [axes] (lists of values), [[rows]] (name and settings) and, to
choose on validation among values of some axes, [search] with choose = ["temperature"]. docs/reproducing.md explains.
"""

PREDICT_EXAMPLES = """examples:
  fedbm predict fedbm-digits-s0 a.png b.png                   the likeliest class of each
  fedbm predict fedbm-scans-s0 new/ --to new.csv              a folder; every class's probability, for other programs
A file that cannot be read is named; the others are classified all the same.
"""

DATA_EXAMPLES = """examples:
  fedbm data list                                   the catalogue: what there is, and how to have it
  fedbm data get bloodmnist --size 64               fetch a public file, or be told what to do by hand
  fedbm data inspect ~/scans --size 64              counts, a sheet of samples, duplicates, warnings
  fedbm data partition ~/scans --clients 5 --beta 0.3 --picture who-holds-what.svg
'fedbm data PATH' is short for 'fedbm data partition PATH', 'fedbm data' for 'fedbm data list'.
"""

GET_EXAMPLES = """examples:
  fedbm data get bloodmnist                         128 pixels, the data set's own size
  fedbm data get dermamnist --size 64 --accept-licence
  fedbm data get kvasir                             says what to download, from where, and where to put it
A download that was cut goes on where it ended. What is in the default folder is found by name: --data bloodmnist.
"""
