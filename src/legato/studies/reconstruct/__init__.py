"""Learned regularisers behind operators: deblurring and tomography, from one number to filters."""
