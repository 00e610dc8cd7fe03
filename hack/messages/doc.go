// Package messages tests that docs/troubleshooting.md and the errors of docs/install.md match the messages of programs and policies. It has no
// code of its own.
package messages
