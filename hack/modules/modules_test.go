package modules

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const root = "../.."

// The table of docs/image.md: every linked module has a reason in reasons.yaml, and there are no other reasons.
func TestDependencies(t *testing.T) {
	all, err := Dependencies(root)
	errtest.Must(t, err)
	in := map[string][]string{}
	for _, d := range all {
		in[d.Path] = d.In
	}
	for path, want := range map[string][]string{
		"github.com/osrg/gobgp/v3":               {"tortie"},
		"github.com/containernetworking/plugins": {"bandwidth", "loopback", "portmap"},
		"github.com/containernetworking/cni":     {"bandwidth", "calico", "loopback", "portmap"},
		"github.com/anishathalye/porcupine":      nil, // of tests
		"github.com/google/go-containerregistry": nil, // of hack
		"github.com/tortie-net/tortie":           nil, // itself
	} {
		if !slices.Equal(in[path], want) {
			t.Errorf("%s is in %v, want %v", path, in[path], want)
		}
	}
}

func TestExplain(t *testing.T) {
	linked, in := map[string]Module{"example.net/a": {Path: "example.net/a", Version: "v1"}}, map[string][]string{"example.net/a": {"tortie"}}
	if all, err := explain(linked, in, map[string]string{"example.net/a": "x"}); err != nil || len(all) != 1 || all[0].Reason != "x" {
		t.Errorf("%+v, %v", all, err)
	}
	for _, c := range []struct {
		reasons map[string]string
		want    string
	}{
		{nil, "example.net/a is linked into [tortie]"},
		{map[string]string{"example.net/a": "x", "example.net/b": "x"}, "why example.net/b is linked, which it is not"},
	} {
		if _, err := explain(linked, in, c.reasons); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q in it", c.reasons, err, c.want)
		}
	}
}

func TestIdentify(t *testing.T) {
	for content, want := range map[string]string{
		"Apache License\n Version 2.0, January 2004":                                                                          "Apache-2.0",
		"Licensed under the Apache License, Version 2.0":                                                                      "Apache-2.0",
		"Permission is hereby granted, free of charge, to any person obtaining\na copy":                                       "MIT",
		"Redistribution and use in source and binary forms":                                                                   "BSD-2-Clause",
		"Redistribution and use in source\nand binary forms ... may be used to endorse or promote products":                   "BSD-3-Clause",
		"Permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted": "ISC",
		"Mozilla Public License, version 2.0":                                                                                 "MPL-2.0",
		"GNU GENERAL PUBLIC LICENSE":                                                                                          "",
		"All rights reserved.":                                                                                                "",
	} {
		if got := identify(map[string][]byte{"LICENSE": []byte(content)}); got != want {
			t.Errorf("%q is %q, want %q", content, got, want)
		}
	}
	if got := identify(map[string][]byte{"third_party/LICENSE": []byte("Mozilla Public License, version 2.0")}); got != "" {
		t.Errorf("a copy's licence is taken for the module's: %q", got)
	}
}

func TestModuleWithoutLicence(t *testing.T) {
	c := Cache{modules: t.TempDir()}
	m := Module{Path: "example.net/Upper", Version: "v1.0.0"}
	if _, err := c.Licences(m); err == nil || !strings.Contains(err.Error(), "go mod download") {
		t.Errorf("a missing module: %v", err)
	}
	dir := filepath.Join(c.modules, "example.net/!upper@v1.0.0")
	errtest.Must(t, os.MkdirAll(dir, 0o755))
	if _, err := c.Licences(m); err == nil || !strings.Contains(err.Error(), "no licence that is known") {
		t.Errorf("a module without one: %v", err)
	}
}
