"""Random augmentation of images, videos and audio on their device, different for each example.

Nothing here waits for the device, so everything can be recorded as a CUDA graph.
"""

from headway.nn.augment.augment import Augment
from headway.nn.augment.mixing import MixedImages, mix_images
from headway.nn.augment.spec_augment import SpecAugment

__all__ = ["Augment", "MixedImages", "SpecAugment", "mix_images"]
