package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// metricsPath is the list of the programs' metrics.
const metricsPath = "docs/metrics.csv"

func metrics(root string) ([]byte, error) {
	rows := [][]string{{"Program", "Metric", "Type", "Labels", "Meaning"}}
	for _, program := range []struct{ name, dir string }{{"node", "agent"}, {"install", "install"}, {"kube-controllers", "controllers"}} {
		more, err := metricRows(filepath.Join(root, "internal", program.dir))
		if err != nil {
			return nil, err
		}
		for _, row := range more {
			rows = append(rows, append([]string{program.name}, row...))
		}
	}
	return commaSeparated(rows)
}

// metricRows returns the metrics that the files of a directory declare, composite literals of prometheus.*Opts: name,
// type, labels, meaning.
func metricRows(dir string) ([][]string, error) {
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("looking for metrics: %w", err)
	}
	var rows [][]string
	for _, path := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("looking for metrics: %w", err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if row := metricRow(n); row != nil {
				rows = append(rows, row)
			}
			return true
		})
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no metrics found in %s", dir)
	}
	for _, row := range rows {
		if row[3] == "" {
			return nil, fmt.Errorf("%s: the text of %s is no literal", dir, row[0])
		}
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return rows, nil
}

// metricRow reads prometheus.NewXxx(prometheus.XxxOpts{Name: "...", Help: "..."}, []string{labels...}), and
// prometheus.NewDesc("name", "help", []string{labels...}, nil), which is of gauges here; and rows of the agent's table:
// gauge("name", "help", ...).
func metricRow(n ast.Node) []string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return nil
	}
	if row, ok := call.Fun.(*ast.Ident); ok && len(call.Args) >= 3 && literal(call.Args[0]) != "" {
		if kind, ok := map[string]string{"gauge": "gauge", "gauges": "gauge", "peerGauge": "gauge", "counter": "counter",
			"counters": "counter"}[row.Name]; ok {
			return []string{literal(call.Args[0]), kind, labelList(call.Args[2]), literal(call.Args[1])}
		}
	}
	constructor, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(constructor.Sel.Name, "New") {
		return nil
	}
	if constructor.Sel.Name == "NewDesc" && len(call.Args) == 4 && literal(call.Args[0]) != "" {
		return []string{literal(call.Args[0]), "gauge", labelList(call.Args[2]), literal(call.Args[1])}
	}
	opts, ok := call.Args[0].(*ast.CompositeLit)
	if !ok {
		return nil
	}
	fields := map[string]string{}
	for _, element := range opts.Elts {
		if kv, ok := element.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok {
				fields[key.Name] = literal(kv.Value)
			}
		}
	}
	if fields["Name"] == "" {
		return nil
	}
	kind := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(constructor.Sel.Name, "New"), "Vec"), "Func")
	labels := ""
	if len(call.Args) > 1 {
		labels = labelList(call.Args[1])
	}
	return []string{fields["Name"], strings.ToLower(kind), labels, fields["Help"]}
}

// labelList reads []string{labels...}; anything else has none.
func labelList(e ast.Expr) string {
	var labels []string
	if list, ok := e.(*ast.CompositeLit); ok {
		for _, label := range list.Elts {
			labels = append(labels, literal(label))
		}
	}
	return strings.Join(labels, " ")
}

// literal returns the text of a literal, or of literals that are joined by +; else "".
func literal(e ast.Expr) string {
	if sum, ok := e.(*ast.BinaryExpr); ok {
		x, y := literal(sum.X), literal(sum.Y)
		if x == "" || y == "" {
			return ""
		}
		return x + y
	}
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}
