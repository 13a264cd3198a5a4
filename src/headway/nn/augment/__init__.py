"""Random augmentation of images, videos and audio on their device, different for each example.

Nothing here waits for the device, so everything can be recorded as a CUDA graph.
"""

from headway.nn.augment.augment import Augment
from headway.nn.augment.mixing import Mixed, mix_pictures
from headway.nn.augment.spec_augment import SpecAugment

__all__ = ["Augment", "Mixed", "SpecAugment", "mix_pictures"]
