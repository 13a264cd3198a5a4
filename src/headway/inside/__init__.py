"""Look inside a model: attention, hidden states, the logit lens, attribution maps and more.

from headway.inside import load, look

look(load("tatoeba-de-en"), "Ich gehe nach Hause.").save("look.html")
"""

from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.capture.torch_modules import from_torch
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure import maps
from headway.inside.measure.features.dictionary import factors
from headway.inside.measure.heads import heads
from headway.inside.measure.lens import lens, tune
from headway.inside.page.look import look
from headway.tasks.loaded_run import open_plain as load

__all__ = [
    "GenerationOptions",
    "Intervention",
    "Trace",
    "factors",
    "from_torch",
    "heads",
    "lens",
    "load",
    "look",
    "maps",
    "read",
    "trace",
    "tune",
]
