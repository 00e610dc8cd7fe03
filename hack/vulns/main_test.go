package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// database writes a database with one vulnerability: net/url.Parse, in every release.
func database(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const entry = `{"id":"GO-2000-0001","modified":"2026-11-01T00:00:00Z"`
	write(t, dir, "index/db.json", `{"modified":"2026-11-01T00:00:00Z"}`)
	write(t, dir, "index/modules.json", `[{"path":"stdlib","vulns":[`+entry+`}]}]`)
	write(t, dir, "index/vulns.json", `[`+entry+`}]`)
	write(t, dir, "ID/GO-2000-0001.json", entry+`,"schema_version":"1.3.1","published":"2026-11-01T00:00:00Z","summary":"URLs in net/url",
		"details":"made up","affected":[{"package":{"name":"stdlib","ecosystem":"Go"},
		"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],
		"ecosystem_specific":{"imports":[{"path":"net/url","symbols":["Parse"]}]}}]}`)
	return dir
}

// scanner builds govulncheck in the version of CI.
func scanner(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "govulncheck")
	cmd := exec.Command("go", "build", "-o", path, "tool")
	cmd.Dir = "../govulncheck"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestRealScan(t *testing.T) {
	o := options{scanner: scanner(t), database: databaseURL(database(t)), packages: []string{"./..."}}
	const excepted = "[{id: GO-2000-0001, judged: 2026-11-01, expires: 2026-11-30, reason: made up, test: dir TestX}]"
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ name, body, exceptions, want string }{
		{"called", `_, _ = url.Parse("x")`, "[]", "GO-2000-0001: URLs in net/url"},
		{"called, and excepted", `_, _ = url.Parse("x")`, excepted, ""},
		{"called, and another one excepted", `_, _ = url.Parse("x")`, strings.ReplaceAll(excepted, "0001", "0002"), "GO-2000-0001"},
		{"only linked", `_ = url.QueryEscape("x")`, "[]", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.root = t.TempDir()
			write(t, o.root, "go.mod", "module example.net/x\n\ngo 1.26\n")
			write(t, o.root, "main.go", "package main\n\nimport \"net/url\"\n\nfunc main() { "+c.body+" }\n")
			o.exceptions = write(t, t.TempDir(), "exceptions.yaml", c.exceptions)
			var out bytes.Buffer
			err := run(t.Context(), o, now, &out)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if !strings.Contains(out.String(), "database of 2026-11-01") {
				t.Errorf("output %q", out.String())
			}
		})
	}
}

func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	called := []finding{{id: "GO-1", summary: "x", module: "m", version: "v1", fixed: "v2", function: "m.F", from: "main.main"}}
	until := func(day string) []exception { return []exception{{ID: "GO-1", Reason: "made up", Expires: day}} }
	for _, c := range []struct {
		name     string
		findings []finding
		accepted []exception
		want     string
	}{
		{"nothing", nil, nil, ""},
		{"called", called, nil, "GO-1: x: m v1 is called, from main.main: m.F; fixed in v2"},
		{"accepted, on the last day", called, until("2026-11-22"), ""},
		{"accepted for too long", called, until("2026-11-21"), "ended on 2026-11-21"},
		{"accepted in vain, so far", nil, until("2026-11-22"), ""},
		{"accepted in vain for too long", nil, until("2026-11-21"), "remove it"},
		{"another one is accepted", called, []exception{{ID: "GO-2", Reason: "made up", Expires: "2026-12-31"}}, "GO-1: x"},
	} {
		err := errors.Join(judge(c.findings, c.accepted, now)...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
}

func TestNoDatabase(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	defer gone.Close()
	for _, database := range []string{"file:///no/such/directory", databaseURL("/no/such/directory"), gone.URL} {
		o := options{database: database, exceptions: write(t, t.TempDir(), "exceptions.yaml", "[]")}
		var out bytes.Buffer
		if err := run(t.Context(), o, time.Now(), &out); err != nil || !strings.HasPrefix(out.String(), "NOT CHECKED: ") ||
			!strings.Contains(out.String(), database) {
			t.Errorf("%v, output %q", err, out.String())
		}
		o.require = true
		if err := run(t.Context(), o, time.Now(), &out); err == nil || !strings.Contains(err.Error(), database) {
			t.Errorf("-require: %v", err)
		}
	}
}

func TestExceptionsNeedReasonAndDay(t *testing.T) {
	const good = "{id: GO-1, judged: 2026-11-22, expires: 2026-12-31, reason: x, test: dir TestX}"
	read := func(text string) error {
		_, err := readExceptions(write(t, t.TempDir(), "exceptions.yaml", "["+text+"]"))
		return err
	}
	errtest.Must(t, read(good))
	for _, change := range [][2]string{
		{"id: GO-1, ", ""}, {"2026-11-22", "today"}, {"2026-12-31", "soon"}, {"reason: x, ", ""}, {"dir TestX", "TestX"}, {"reason", "why"},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if text == good || read(text) == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

var advisoryID = regexp.MustCompile(`"(GO-\d+-\d+)"`)

// The test named by each exception exists, with its case, and each replayed advisory has an exception.
func TestExceptionsNameTests(t *testing.T) {
	all, err := readExceptions("exceptions.yaml")
	errtest.Must(t, err)
	var excepted []string
	for _, e := range all {
		dir, test, _ := strings.Cut(e.Test, " ")
		function, name, _ := strings.Cut(test, "/")
		text := testSources(t, dir)
		if !strings.Contains(text, "\nfunc "+function+"(t *testing.T)") {
			t.Errorf("%s: there is no test %s in %s", e.ID, function, dir)
		}
		if name != e.ID || !strings.Contains(text, `"`+name+`"`) {
			t.Errorf("%s: there is no case %q of %s in %s", e.ID, name, function, dir)
		}
		excepted = append(excepted, e.ID)
	}
	var replayed []string
	for _, match := range advisoryID.FindAllStringSubmatch(testSources(t, "internal/bgp"), -1) {
		replayed = append(replayed, match[1])
	}
	slices.Sort(excepted)
	slices.Sort(replayed)
	if len(replayed) < 9 || !slices.Equal(replayed, excepted) {
		t.Errorf("replayed are %v, and exceptions.yaml has %v", replayed, excepted)
	}
}

// testSources returns the sources of all tests of a directory.
func testSources(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	errtest.Must(t, err)
	var all strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		errtest.Must(t, err)
		all.Write(text)
	}
	return all.String()
}

// FuzzParse: any output of the scanner results in findings with a function, or in an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte(
		`{"osv":{"id":"GO-1","summary":"x"}}{"finding":{"osv":"GO-1","trace":[{"module":"stdlib","package":"net/url","function":"Parse"}]}}`))
	f.Add([]byte(`{"finding":{"osv":"GO-1","trace":[]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parse(bytes.NewReader(text))
		for _, found := range all {
			if err != nil || found.function == "" {
				t.Errorf("%+v, %v", found, err)
			}
			_ = fmt.Sprint(found)
		}
	})
}
