package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMeasuresEveryPlugin(t *testing.T) {
	bin := t.TempDir()
	for _, name := range plugins {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nread request; [ \"$CNI_COMMAND\" = VERSION ]\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(bin, 2); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "portmap"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(bin, 2); err == nil || !strings.Contains(err.Error(), "portmap") {
		t.Errorf("a plugin that fails: %v", err)
	}
	if err := os.Remove(filepath.Join(bin, "calico")); err != nil {
		t.Fatal(err)
	}
	if err := run(bin, 2); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("a plugin that is missing: %v", err)
	}
}
