"""Pictures and videos changed at random, on the device they are on, each by numbers of its own.

Nothing here asks the device for a number, so all of it can be recorded as a CUDA graph.
"""

from headway.nn.augment.augment import Augment
from headway.nn.augment.mixing import Mixed, mix_pictures

__all__ = ["Augment", "Mixed", "mix_pictures"]
