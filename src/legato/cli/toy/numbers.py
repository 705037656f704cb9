"""Numbers as they are printed: with so many digits, a short exponent and a real minus sign."""

from __future__ import annotations


def printed_like(value: float, text: str) -> str:
    """``value`` with as many digits as ``text`` shows, in the same notation."""
    mantissa, marker, _ = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    if not marker:
        return minus(f"{value:.{decimals}f}")
    if value == 0:
        return "0"
    digits, _, exponent = f"{value:.{decimals}e}".partition("e")
    return minus(f"{digits}e{int(exponent)}")


def minus(text: str) -> str:
    """The same with − for the hyphen."""
    return text.replace("-", "−")
