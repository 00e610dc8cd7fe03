// Package messages holds the test that keeps docs/troubleshooting.md, the errors of docs/install.md, and what programs and policies say
// in step. It has no code of its own.
package messages
