"""Train, use and look inside Transformers of every family.

Importing the package imports nothing else: `headway --help` and settings checks stay quick
because torch is loaded only by the modules that compute.
"""

__version__ = "0.1.0"
