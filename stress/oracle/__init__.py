"""Random energies held against an interior-point solver: what legato finds, and its gradient.

``recipes`` says what a problem is, ``drawing`` draws one, ``truth`` solves it without legato,
``judge`` compares, ``shrink`` makes a finding small, ``chunks`` runs many of them.
"""
