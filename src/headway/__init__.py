"""Train, use and look inside Transformers of every family.

Importing the package imports nothing else: `headway --help` and settings checks stay quick
because torch is loaded only by the modules that compute.
"""

import os

# Threads of OpenMP that wait for each other spin. Where other work holds the cores they spin away
# their own share, and steps and searches become several times slower; asleep they do not. This is
# read when torch is loaded; who sets it, or the time to spin, has it their way.
if "GOMP_SPINCOUNT" not in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
