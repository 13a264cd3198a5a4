"""DeiT of Hugging Face: ViT with a row that learned from a teacher."""

from __future__ import annotations

from headway.interop.hf.vit import VitFamily

DEIT = VitFamily(
    "deit",
    "DeiT",
    "deit",
    heads={
        "ForImageClassificationWithTeacher": {
            "classes": "cls_classifier",
            "distilled": "distillation_classifier",
        },
        "ForImageClassification": {"classes": "classifier"},
        "Model": {},
    },
    distils=True,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
