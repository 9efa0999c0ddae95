"""Colours: a method's curve is told from every other's, also by people who see few colours, on both grounds."""

import itertools

import numpy as np
import pytest
from PySide6.QtGui import QColor

from app.widgets.theme import method_color, set_appearance
from mesp_core.methods.registry import METHODS

# Linear RGB as it is seen by eyes without one kind of cone (Machado, Oliveira and Fernandes 2009).
EYES = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_LMS = np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]])
TO_OKLAB = np.array([[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]])


def linear(color: QColor):
    rgb = np.array(color.getRgbF()[:3])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def distance(one, other, eye):
    """In Oklab, where 0.02 is about what can just be seen side by side."""
    labs = [TO_OKLAB @ np.cbrt(TO_LMS @ np.clip(EYES[eye] @ linear(color), 0, 1)) for color in (one, other)]
    return np.linalg.norm(labs[0] - labs[1])


def contrast(color, ground):
    light = [0.05 + np.dot(linear(QColor(c)), [0.2126, 0.7152, 0.0722]) for c in (color, ground)]
    return max(light) / min(light)


@pytest.mark.parametrize("appearance, ground", [("light", "#ffffff"), ("dark", "#1e1e20")])
def test_every_method_has_a_colour_of_its_own_that_can_be_seen(qapp, appearance, ground):
    try:
        set_appearance(appearance)
        colors = {method: method_color(method) for method in METHODS}
    finally:
        set_appearance("system")
    for one, other in itertools.combinations(METHODS, 2):
        for eye in EYES:
            wanted = 0.1 if "lean" in (one, other) else 0.04
            assert distance(colors[one], colors[other], eye) > wanted, (one, other, eye)
    for method, color in colors.items():
        assert contrast(color, ground) > 3, method
