// Package built tests the image that `make image-all` has written: its size, that its programs run, and that the build
// is reproducible.
package built
