"""``legato explore``: a picture segmented or denoised, and the toy's gradients, on a local page."""
