package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/hack/messages"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/install"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

// section finds a generated part of a page: <!-- generated: NAME --> ... <!-- end -->.
var section = regexp.MustCompile(`(?s)(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)`)

// docs returns the pages of docs/ with their generated parts made anew.
func docs(o options) (files, error) {
	parts, err := sections(o)
	if err != nil {
		return nil, err
	}
	pages, err := filepath.Glob(filepath.Join(o.root, "docs", "*.md"))
	if err != nil {
		return nil, fmt.Errorf("listing docs: %w", err)
	}
	out, used := files{}, map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, fmt.Errorf("reading page: %w", err)
		}
		if err := checkNames(page, string(text), parts, used); err != nil {
			return nil, err
		}
		out["docs/"+filepath.Base(page)] = section.ReplaceAllFunc(text, func(match []byte) []byte {
			groups := section.FindSubmatch(match)
			return []byte(string(groups[1]) + parts[string(groups[2])] + string(groups[3]))
		})
	}
	for name := range parts {
		if !used[name] {
			return nil, fmt.Errorf("no page in docs/ has the section <!-- generated: %s -->", name)
		}
	}
	return out, nil
}

// checkNames marks the sections of a page as used and rejects unknown ones, which would never be updated.
func checkNames(page, text string, parts map[string]string, used map[string]bool) error {
	for _, groups := range section.FindAllStringSubmatch(text, -1) {
		name := groups[2]
		if _, ok := parts[name]; !ok {
			return fmt.Errorf("%s has an unknown section %q", page, name)
		}
		used[name] = true
	}
	if opened, closed := strings.Count(text, "<!-- generated:"), len(section.FindAllString(text, -1)); opened != closed {
		return fmt.Errorf("%s has %d sections that begin and %d that are whole", page, opened, closed)
	}
	return nil
}

// sections returns the generated parts by name.
func sections(o options) (map[string]string, error) {
	policies, err := policyFields()
	if err != nil {
		return nil, err
	}
	parts := map[string]string{
		"calico-policy-fields": policies,
		"install-env":          variables(config.Describe(config.Install{})),
		"install-placeholders": placeholders(),
		"controllers-env":      variables(config.Describe(config.ControllersVariables{})),
		"node-env":             variables(config.Describe(config.NodeVariables{})),
		"cni-options":          optionList(ofCNI),
		"ipam-options":         optionList(ofIPAM),
		"cni-env":              variables(config.Describe(config.PluginVariables{})),
		"upgrade-env":          variables(config.Describe(config.UpgradeVariables{})),
		"cni-args":             argumentList(),
		"cni-annotations":      annotationList(),
		"reads":                fence.ReadList(),
		"host":                 fence.HostList(),
	}
	return parts, addMessages(parts, o.root)
}

// addMessages adds the lists of what programs report.
func addMessages(parts map[string]string, root string) error {
	catalogue, err := messages.Load(root)
	for name, entries := range catalogue {
		for _, e := range entries {
			parts["messages-"+name] += item("`"+strings.Join(e.Texts(), "`, `")+"`", e.Help)
		}
	}
	return err
}

func variables(vars []config.Var) (list string) {
	for _, v := range vars {
		list += item(code(v.Name), v.Help, code(v.Default))
	}
	return list
}

// placeholders lists those of the variables of their names in one line.
func placeholders() (list string) {
	var variables []string
	for _, p := range install.Placeholders() {
		if strings.HasPrefix(p.Help, strings.Trim(p.Name, "_")) {
			variables = append(variables, code(p.Name))
			continue
		}
		list += item(code(p.Name), p.Help)
	}
	return list + item(strings.Join(variables, ", "), "the variable of that name; sizes, ages, counts and the MTU are numbers, REQUIRE_MTU_FILE is true or false")
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// item returns a line of a list: a name, what is known of it in brackets, empty texts left out, and its meaning.
func item(name, meaning string, known ...string) string {
	known = slices.DeleteFunc(known, func(text string) bool { return text == "" })
	if len(known) > 0 {
		name += " (" + strings.Join(known, ", ") + ")"
	}
	return "- " + name + ": " + meaning + "\n"
}
