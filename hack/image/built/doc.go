// Package built has the tests of the image that `make image-all` has written: what it weighs, that its programs run, and that
// another directory gives the same.
package built
