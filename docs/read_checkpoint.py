#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the L2 norm of every array of a p3d checkpoint, without p3d.   usage: read_checkpoint.py FILE"""
import sys
import h5py
import numpy

with h5py.File(sys.argv[1], "r") as file:
    for kind in ("parameters", "first_moment", "second_moment", "previous_weights"):
        for name, array in file.get(kind, {}).items():
            print(f"{kind}/{name} {numpy.linalg.norm(array[...].astype('f8').ravel()):.16e}")
