"""Random augmentation of images, videos and audio on their own device, drawn independently for each
example.

Nothing here synchronizes with the device, so a CUDA graph can contain all of it.
"""

from headway.nn.augment.augment import Augment
from headway.nn.augment.mixing import MixedImages, mix_images
from headway.nn.augment.spec_augment import SpecAugment

__all__ = ["Augment", "MixedImages", "SpecAugment", "mix_images"]
