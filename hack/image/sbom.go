package main

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The parts of SPDX 2.3 that say what a program is made of. https://spdx.github.io/spdx-spec/v2.3/
type (
	sbom struct {
		SPDXVersion       string         `json:"spdxVersion"`
		DataLicense       string         `json:"dataLicense"`
		SPDXID            string         `json:"SPDXID"`
		Name              string         `json:"name"`
		DocumentNamespace string         `json:"documentNamespace"`
		CreationInfo      creationInfo   `json:"creationInfo"`
		Packages          []spdxPackage  `json:"packages"`
		Files             []spdxFile     `json:"files"`
		Relationships     []relationship `json:"relationships"`
	}
	creationInfo struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string        `json:"SPDXID"`
		Name             string        `json:"name"`
		VersionInfo      string        `json:"versionInfo"`
		DownloadLocation string        `json:"downloadLocation"`
		FilesAnalyzed    bool          `json:"filesAnalyzed"`
		Purpose          string        `json:"primaryPackagePurpose"`
		LicenseConcluded string        `json:"licenseConcluded"`
		LicenseDeclared  string        `json:"licenseDeclared"`
		Copyright        string        `json:"copyrightText"`
		ExternalRefs     []externalRef `json:"externalRefs,omitempty"`
	}
	externalRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxFile struct {
		SPDXID           string     `json:"SPDXID"`
		Name             string     `json:"fileName"`
		Types            []string   `json:"fileTypes"`
		Checksums        []checksum `json:"checksums"`
		LicenseConcluded string     `json:"licenseConcluded"`
		LicenseInfo      []string   `json:"licenseInfoInFiles"`
		Copyright        string     `json:"copyrightText"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	relationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const (
	noAssertion = "NOASSERTION"
	documentID  = "SPDXRef-DOCUMENT"
	imageID     = "SPDXRef-Image"
)

// makeSBOM lists the Go modules that each program says it was built from, and the image's other files but the list itself.
func makeSBOM(programs map[string][]byte, roots []byte, arch string, o options) ([]byte, error) {
	doc := sbom{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: documentID, Name: "tortie " + o.version + " " + arch,
		CreationInfo:  creationInfo{Created: o.created.UTC().Format(time.RFC3339), Creators: []string{"Organization: tortie-net", "Tool: hack/image"}},
		Packages:      []spdxPackage{imagePackage(o)},
		Relationships: []relationship{{documentID, "DESCRIBES", imageID}},
	}
	packages := map[string]spdxPackage{}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		info, err := buildinfo.Read(bytes.NewReader(programs[name]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		id := doc.add(name, "BINARY", programs[name])
		for _, m := range modules(info, o.version) {
			p := modulePackage(m)
			packages[p.SPDXID] = p
			doc.Relationships = append(doc.Relationships, relationship{id, "STATIC_LINK", p.SPDXID})
		}
	}
	doc.add(caPath, "TEXT", roots)
	for _, id := range slices.Sorted(maps.Keys(packages)) {
		doc.Packages = append(doc.Packages, packages[id])
	}
	doc.DocumentNamespace = fmt.Sprintf("%s/sbom/%s-%s", source, arch, doc.fingerprint())
	text, err := json.MarshalIndent(doc, "", " ")
	return append(text, '\n'), err
}

// add puts a file of the image into the list and returns its identifier.
func (s *sbom) add(name, kind string, content []byte) string {
	one, two := sha1.Sum(content), sha256.Sum256(content) // SPDX wants SHA-1 of every file
	f := spdxFile{
		SPDXID: "SPDXRef-File-" + identifier(path.Base(name)), Name: "./" + name, Types: []string{kind},
		Checksums:        []checksum{{"SHA1", hex.EncodeToString(one[:])}, {"SHA256", hex.EncodeToString(two[:])}},
		LicenseConcluded: noAssertion, LicenseInfo: []string{noAssertion}, Copyright: noAssertion,
	}
	s.Files = append(s.Files, f)
	s.Relationships = append(s.Relationships, relationship{imageID, "CONTAINS", f.SPDXID})
	return f.SPDXID
}

// fingerprint makes the document's name its own, and the same for the same files.
func (s *sbom) fingerprint() string {
	h := sha256.New()
	for _, f := range s.Files {
		for _, c := range f.Checksums {
			fmt.Fprintln(h, f.Name, c.Value)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// modules are what a program is linked from: its own, those that it requires, and Go's library.
func modules(info *debug.BuildInfo, version string) []debug.Module {
	own := info.Main
	if own.Version == "(devel)" || own.Version == "" {
		own.Version = version
	}
	all := []debug.Module{own, {Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, *m)
	}
	return all
}

func imagePackage(o options) spdxPackage {
	return spdxPackage{
		SPDXID: imageID, Name: o.ref, VersionInfo: o.version, DownloadLocation: noAssertion, Purpose: "CONTAINER",
		LicenseConcluded: noAssertion, LicenseDeclared: license, Copyright: noAssertion,
	}
}

func modulePackage(m debug.Module) spdxPackage {
	return spdxPackage{
		SPDXID: "SPDXRef-Go-" + identifier(m.Path+"-"+m.Version), Name: m.Path, VersionInfo: m.Version, DownloadLocation: noAssertion,
		Purpose: "LIBRARY", LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, Copyright: noAssertion,
		// The form that databases of vulnerabilities are asked by.
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")}},
	}
}

var notInIdentifier = regexp.MustCompile(`[^A-Za-z0-9.-]`)

func identifier(name string) string { return notInIdentifier.ReplaceAllString(name, "-") }
