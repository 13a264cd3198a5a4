"""Pictures, videos and recordings changed at random, on their device, each by its own numbers.

Nothing here asks the device for a number, so all of it can be recorded as a CUDA graph.
"""

from headway.nn.augment.augment import Augment
from headway.nn.augment.mixing import Mixed, mix_pictures
from headway.nn.augment.spec_augment import SpecAugment

__all__ = ["Augment", "Mixed", "SpecAugment", "mix_pictures"]
