package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/hack/modules"
)

// The parts of SPDX 2.3 that list a program's components. https://spdx.github.io/spdx-spec/v2.3/
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
		Supplier         string        `json:"supplier"`
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
	supplier    = "Organization: tortie-net"
)

// makeSBOM lists the image's files except the list itself, the Go modules of each program, and their licences.
func makeSBOM(files map[string]file, made *inventory, arch string, o options) ([]byte, error) {
	doc := sbom{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: documentID, Name: "tortie " + o.version + " " + arch,
		CreationInfo:  creationInfo{Created: o.created.UTC().Format(time.RFC3339), Creators: []string{supplier, "Tool: hack-image"}},
		Packages:      []spdxPackage{imagePackage(o)},
		Relationships: []relationship{{documentID, "DESCRIBES", imageID}},
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if f.target != "" && !f.hard {
			continue // a symbolic link has no content
		}
		if f.hard {
			f = files[f.target]
		}
		id := doc.add(name, f.content)
		if name == caPath {
			doc.Relationships = append(doc.Relationships, relationship{id, "GENERATED_FROM", moduleID(made.roots)})
		}
		for _, m := range made.programs[name].Modules {
			doc.Relationships = append(doc.Relationships, relationship{id, "STATIC_LINK", moduleID(m)})
		}
	}
	for _, m := range made.sorted() {
		doc.Packages = append(doc.Packages, modulePackage(m, made.modules[m].Expression))
	}
	doc.DocumentNamespace = fmt.Sprintf("%s/sbom/%s-%s", source, arch, doc.fingerprint())
	text, err := json.Marshal(doc) // not indented: a sixth of it would be blanks, and it is in the image
	return append(text, '\n'), err
}

// add adds a file of the image and returns its identifier.
func (s *sbom) add(name string, content []byte) string {
	kind := "TEXT"
	if strings.Contains(name, "bin/") {
		kind = "BINARY"
	}
	one, two := sha1.Sum(content), sha256.Sum256(content) // SPDX requires SHA-1 of every file
	f := spdxFile{
		SPDXID: "SPDXRef-File-" + identifier(name), Name: "./" + name, Types: []string{kind},
		Checksums:        []checksum{{"SHA1", hex.EncodeToString(one[:])}, {"SHA256", hex.EncodeToString(two[:])}},
		LicenseConcluded: noAssertion, LicenseInfo: []string{noAssertion}, Copyright: noAssertion,
	}
	s.Files = append(s.Files, f)
	s.Relationships = append(s.Relationships, relationship{imageID, "CONTAINS", f.SPDXID})
	return f.SPDXID
}

// fingerprint makes the document's namespace unique, and equal for equal files.
func (s *sbom) fingerprint() string {
	h := sha256.New()
	for _, f := range s.Files {
		for _, c := range f.Checksums {
			fmt.Fprintln(h, f.Name, c.Value)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

func imagePackage(o options) spdxPackage {
	return spdxPackage{
		SPDXID: imageID, Name: o.ref, VersionInfo: o.version, Supplier: supplier, DownloadLocation: noAssertion, Purpose: "CONTAINER",
		LicenseConcluded: noAssertion, LicenseDeclared: license, Copyright: noAssertion,
	}
}

func modulePackage(m modules.Module, licence string) spdxPackage {
	return spdxPackage{
		SPDXID: moduleID(m), Name: m.Path, VersionInfo: m.Version, Supplier: noAssertion, DownloadLocation: noAssertion,
		Purpose: "LIBRARY", LicenseConcluded: licence, LicenseDeclared: licence, Copyright: noAssertion,
		// Package URLs are the keys of vulnerability databases.
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", purl(m)}},
	}
}

func moduleID(m modules.Module) string { return "SPDXRef-Go-" + identifier(m.Path+"-"+m.Version) }

func purl(m modules.Module) string {
	return "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
}

var notInIdentifier = regexp.MustCompile(`[^A-Za-z0-9.-]`)

func identifier(name string) string { return notInIdentifier.ReplaceAllString(name, "-") }
