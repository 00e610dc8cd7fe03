// Package logtest keeps the output of processes that tests start.
package logtest

import (
	"bytes"
	"sync"
)

// tailSize is the length of Tail: enough for the last errors, and short enough for the output of a test.
const tailSize = 6000

// Buffer is an in-memory writer for the output of a process. It is safe for concurrent use; its zero value is empty.
type Buffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns everything that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Tail returns the end of the output, at most 6,000 bytes.
func (b *Buffer) Tail() string {
	text := b.String()
	return text[max(0, len(text)-tailSize):]
}
