package demo

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// expect returns an error for each pattern that does not occur in a command's output. ^ and $ match at lines.
func expect(out string, patterns ...string) error {
	var errs []error
	for _, p := range patterns {
		re, err := regexp.Compile("(?m)" + p)
		if err != nil {
			return err
		}
		if !re.MatchString(out) {
			errs = append(errs, fmt.Errorf("the output has nothing like %q", p))
		}
	}
	return errors.Join(errs...)
}

// expectLines returns an error unless exactly n lines match.
func expectLines(out string, n int, pattern string) error {
	got, err := lines(out, pattern)
	if err == nil && got != n {
		err = fmt.Errorf("%d lines are like %q, want %d", got, pattern, n)
	}
	return err
}

// expectSome returns an error unless at least n lines match the pattern.
func expectSome(out string, n int, pattern string) error {
	got, err := lines(out, pattern)
	if err == nil && got < n {
		err = fmt.Errorf("%d lines are like %q, want %d at least", got, pattern, n)
	}
	return err
}

// lines counts the lines that match the pattern.
func lines(out, pattern string) (n int, err error) {
	re, err := regexp.Compile("(?m)" + pattern)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(out) {
		if re.MatchString(line) {
			n++
		}
	}
	return n, nil
}

// columns reads a table without heading: the second column by the first.
func columns(out string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 2 {
			m[f[0]] = f[1]
		}
	}
	return m
}

// ofKind returns the lines of a table without heading that have kind in the first column, without that column.
func ofKind(out, kind string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, kind+" "); ok {
			b.WriteString(strings.TrimLeft(rest, " "))
		}
	}
	return b.String()
}

// quote returns a pattern that matches s literally, for addresses with their dots.
func quote(s string) string { return regexp.QuoteMeta(s) }
