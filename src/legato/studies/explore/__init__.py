"""``legato explore``: a picture segmented and the toy's gradients at any θ, on a local web page."""
