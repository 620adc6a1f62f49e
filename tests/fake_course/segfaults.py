"""Segfaults, its working folder removed: reads what is at address 0."""

import ctypes
import os
import shutil


def run(page):
    shutil.rmtree(os.getcwd())
    ctypes.string_at(0)
