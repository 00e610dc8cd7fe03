// Command vulns fails if Tortie's programs call a function with a known vulnerability, by govulncheck. Accepted
// vulnerabilities are in exceptions.yaml, with a reason and a last day.
//
//	vulns -root .. -govulncheck ../bin/govulncheck
//	vulns -db /media/vulndb
//
// The database is https://vuln.go.dev, or a copy: a directory or a URL that -db or TORTIE_VULNDB names. A machine
// without access to it gets a line that begins with "NOT CHECKED"; with -require that is an error.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	publicDatabase = "https://vuln.go.dev"
	databaseEnv    = "TORTIE_VULNDB"
	reachTimeout   = 10 * time.Second
)

type options struct {
	root, scanner, database, exceptions string
	require                             bool
	packages                            []string
}

func main() {
	o := options{packages: []string{"./cmd/..."}}
	flag.StringVar(&o.root, "root", "..", "directory of the module to check")
	flag.StringVar(&o.scanner, "govulncheck", "../bin/govulncheck", "the scanner")
	flag.StringVar(&o.exceptions, "exceptions", "vulns/exceptions.yaml", "what is accepted")
	flag.StringVar(&o.database, "db", os.Getenv(databaseEnv), "`directory or URL` of a database")
	flag.BoolVar(&o.require, "require", false, "fail if no database can be reached")
	flag.Parse()
	o.database = databaseURL(o.database)
	if err := run(context.Background(), o, time.Now(), os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "vulns: %v\n", err)
		os.Exit(1)
	}
}

// databaseURL returns the URL of a database named by a directory or a URL.
func databaseURL(name string) string {
	if name == "" {
		return publicDatabase
	}
	if strings.Contains(name, "://") {
		return name
	}
	if path, err := filepath.Abs(name); err == nil {
		name = path
	}
	return (&url.URL{Scheme: "file", Path: name}).String()
}

func run(ctx context.Context, o options, now time.Time, out io.Writer) error {
	accepted, err := readExceptions(o.exceptions)
	if err != nil {
		return err
	}
	modified, err := reach(ctx, o.database)
	if err != nil && o.require {
		return fmt.Errorf("NOT CHECKED: %w: bring a copy along (make vulncheck VULNDB=directory)", err)
	}
	if err != nil {
		fmt.Fprintf(out, "NOT CHECKED: %v (%s may name a copy: a directory or a URL)\n", err, databaseEnv)
		return nil
	}
	findings, err := scan(ctx, o)
	if err != nil {
		return err
	}
	problems := judge(findings, accepted, now)
	fmt.Fprintf(out, "database of %s: %d known vulnerabilities are called, %d exceptions\n", modified.Format(time.DateOnly),
		len(findings), len(accepted))
	return errors.Join(problems...)
}

// reach returns the time of the database's last change.
func reach(ctx context.Context, database string) (time.Time, error) {
	var index struct{ Modified time.Time }
	text, err := fetch(ctx, database, "index/db.json")
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("database of vulnerabilities %s: %w", database, err)
	}
	return index.Modified, nil
}

func fetch(ctx context.Context, database, name string) ([]byte, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "file" {
		return os.ReadFile(filepath.Join(u.Path, name))
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(name).String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	return io.ReadAll(response.Body)
}

// scan runs govulncheck and returns the called vulnerabilities.
func scan(ctx context.Context, o options) ([]finding, error) {
	cmd := exec.CommandContext(ctx, o.scanner, append([]string{"-db", o.database, "-format", "json", "-C", o.root}, o.packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("govulncheck: %w\n%s", err, stderr.Bytes())
	}
	return parse(bytes.NewReader(out))
}
