// Package pki creates a lab's certificates, keys, tokens and kubeconfigs. It only writes files.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// lifetime exceeds any lab's.
const lifetime = 365 * 24 * time.Hour

// Authority is a certificate authority with its files in one directory: NAME.crt and NAME.key for each pair.
type Authority struct {
	dir    string
	cert   *x509.Certificate
	key    crypto.Signer
	serial int64
	now    time.Time
}

// NewAuthority creates an authority and writes ca.crt and ca.key.
func NewAuthority(dir string, now time.Time) (*Authority, error) {
	a := &Authority{dir: dir, now: now}
	key, err := a.newKey("ca")
	if err != nil {
		return nil, err
	}
	a.key = key
	a.cert = a.template(pkix.Name{CommonName: "tortie-lab"})
	a.cert.IsCA = true
	a.cert.BasicConstraintsValid = true
	a.cert.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	if err := a.sign("ca", a.cert, key); err != nil {
		return nil, err
	}
	return a, nil
}

// CAFile returns the path of the authority's certificate.
func (a *Authority) CAFile() string { return filepath.Join(a.dir, "ca.crt") }

// Server writes a serving certificate, NAME.crt and NAME.key, for hosts and addresses.
func (a *Authority) Server(name string, hosts []string, addrs []netip.Addr) error {
	t := a.template(pkix.Name{CommonName: name})
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	t.DNSNames = hosts
	for _, addr := range addrs {
		t.IPAddresses = append(t.IPAddresses, net.IP(addr.AsSlice()))
	}
	return a.issue(name, t)
}

// Client writes a client certificate, NAME.crt and NAME.key, for a user in groups.
func (a *Authority) Client(name, user string, groups ...string) error {
	t := a.template(pkix.Name{CommonName: user, Organization: groups})
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(name, t)
}

// KeyPair writes NAME.key and its public half NAME.pub, in kube-apiserver's format for ServiceAccount tokens.
func (a *Authority) KeyPair(name string) error {
	key, err := a.newKey(name)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode the public key %s: %w", name, err)
	}
	return a.write(name+".pub", "PUBLIC KEY", der, 0o644)
}

func (a *Authority) template(subject pkix.Name) *x509.Certificate {
	a.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: subject,
		// Valid from an hour ago: the clock of a virtual machine may be behind.
		NotBefore: a.now.Add(-time.Hour), NotAfter: a.now.Add(lifetime),
	}
}

func (a *Authority) issue(name string, t *x509.Certificate) error {
	key, err := a.newKey(name)
	if err != nil {
		return err
	}
	return a.sign(name, t, key)
}

func (a *Authority) sign(name string, t *x509.Certificate, key crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign the certificate %s: %w", name, err)
	}
	return a.write(name+".crt", "CERTIFICATE", der, 0o644)
}

func (a *Authority) newKey(name string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key %s: %w", name, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key %s: %w", name, err)
	}
	return key, a.write(name+".key", "EC PRIVATE KEY", der, 0o600)
}

func (a *Authority) write(name, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// Token returns a new secret token.
func Token() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails: it aborts the program instead
	return hex.EncodeToString(b)
}

// Kubeconfig is the content of a kubeconfig file.
type Kubeconfig struct {
	Server string
	CA     []byte
	Token  string
}

type (
	namedCluster struct {
		Name    string      `json:"name"`
		Cluster clusterInfo `json:"cluster"`
	}
	clusterInfo struct {
		Server string `json:"server"`
		CA     []byte `json:"certificate-authority-data"`
	}
	namedUser struct {
		Name string   `json:"name"`
		User userInfo `json:"user"`
	}
	userInfo struct {
		Token string `json:"token"`
	}
	namedContext struct {
		Name    string            `json:"name"`
		Context map[string]string `json:"context"`
	}
	kubeconfigFile struct {
		APIVersion     string         `json:"apiVersion"`
		Kind           string         `json:"kind"`
		Clusters       []namedCluster `json:"clusters"`
		Users          []namedUser    `json:"users"`
		Contexts       []namedContext `json:"contexts"`
		CurrentContext string         `json:"current-context"`
	}
)

// Write writes the kubeconfig as JSON, which is YAML.
func (k Kubeconfig) Write(path string) error {
	b, err := json.MarshalIndent(kubeconfigFile{
		APIVersion: "v1", Kind: "Config", CurrentContext: "lab",
		Clusters: []namedCluster{{Name: "lab", Cluster: clusterInfo{Server: k.Server, CA: k.CA}}},
		Users:    []namedUser{{Name: "lab", User: userInfo{Token: k.Token}}},
		Contexts: []namedContext{{Name: "lab", Context: map[string]string{"cluster": "lab", "user": "lab"}}},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// ReadKubeconfig reads a kubeconfig from Write.
func ReadKubeconfig(path string) (Kubeconfig, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Kubeconfig{}, err
	}
	var f kubeconfigFile
	if err := json.Unmarshal(b, &f); err != nil {
		return Kubeconfig{}, fmt.Errorf("parse kubeconfig %s: %w", path, err)
	}
	if len(f.Clusters) != 1 || len(f.Users) != 1 {
		return Kubeconfig{}, fmt.Errorf("kubeconfig %s has %d clusters and %d users, want one of each", path, len(f.Clusters), len(f.Users))
	}
	return Kubeconfig{Server: f.Clusters[0].Cluster.Server, CA: f.Clusters[0].Cluster.CA, Token: f.Users[0].User.Token}, nil
}
