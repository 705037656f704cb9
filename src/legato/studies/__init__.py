"""The paper's studies and ours: a folder holds what one computes, its command and its figures.

Needs the packages of ``pip install 'legato[studies]'``.
"""
