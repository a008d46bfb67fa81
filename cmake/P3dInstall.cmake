# filled in by the build work
