"""The paper's studies and ours, as functions of their settings: they compute, ``legato.cli`` shows.

Needs the packages of ``pip install 'legato[studies]'``.
"""
