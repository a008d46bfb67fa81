#pragma once
// main() of an MPI test program: every rank runs all tests and prints its own failures; the exit code is non-zero when
// any rank failed. No collective inside a failure listener, so a failing rank cannot hang the others there.
