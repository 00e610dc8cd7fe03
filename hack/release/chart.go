package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// setVersion sets the chart's version in the sources to the release's.
func (m maker) setVersion() error {
	path := filepath.Join(m.sources, "charts/tortie/Chart.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the chart: %w", err)
	}
	for key, value := range map[string]string{"version": strings.TrimPrefix(m.version, "v"), "appVersion": m.version} {
		line := regexp.MustCompile(`(?m)^` + key + `: .*$`)
		if found := line.FindAll(text, -1); len(found) != 1 {
			return fmt.Errorf("charts/tortie/Chart.yaml has %d lines with %s, want one", len(found), key)
		}
		text = line.ReplaceAllLiteral(text, []byte(key+": "+value))
	}
	return os.WriteFile(path, text, 0o644)
}

// chart packages the chart, by Helm.
func (m maker) chart() error {
	if _, err := output(m.sources, m.helm, "package", "charts/tortie", "--destination", m.out); err != nil {
		return err
	}
	path := filepath.Join(m.out, "tortie-"+strings.TrimPrefix(m.version, "v")+".tgz")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading Helm's package: %w", err)
	}
	if text, err = atTime(text, m.created); err != nil {
		return fmt.Errorf("setting the times in %s: %w", path, err)
	}
	return os.WriteFile(path, text, 0o644)
}

// atTime returns a tar.gz with one time for all entries: Helm writes the present time.
func atTime(archive []byte, at time.Time) ([]byte, error) {
	from, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	packed.Comment, packed.Extra = from.Comment, from.Extra // Helm's marks
	to := tar.NewWriter(packed)
	for entries := tar.NewReader(from); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		header.ModTime, header.AccessTime, header.ChangeTime = at, time.Time{}, time.Time{}
		if err := to.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.Copy(to, entries); err != nil {
			return nil, err
		}
	}
	err = errors.Join(to.Close(), packed.Close())
	return out.Bytes(), err
}

// sumsFile is the list that sha256sum -c reads.
const sumsFile = "SHA256SUMS"

// writeSums lists the checksums of a directory's files.
func writeSums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing the files: %w", err)
	}
	var list bytes.Buffer
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return fmt.Errorf("summing up: %w", err)
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(text), f.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), list.Bytes(), 0o644)
}
