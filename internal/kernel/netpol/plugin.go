package netpol

import (
	"context"
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// closedFor returns the comment of an element that closes a link until the agent knows the pod with that UID.
func closedFor(uid string) string { return "closed for " + uid }

// givenBack is the comment of an element that closes a link until the agent gives the link to the pod of its Ruleset.
var givenBack = closedFor("the pod before")

// InForce returns the UID of the pod with policies in force at a link of the process's network namespace, "" if there
// is none, and whether the table exists.
func InForce(link string) (uid string, table bool, err error) {
	t := nft.NewOwned(nil, TableName)
	defer t.Close()
	element, err := t.Get(context.Background(), linkSets[policy.Ingress], nft.LinkKey(link))
	switch {
	case err == nil && !strings.HasPrefix(element.Comment, closedFor("")):
		return element.Comment, true, nil
	case err == nil:
		return "", true, nil
	case !netlinkx.IsNotExist(err):
		return "", false, fmt.Errorf("look for %s in nftables table inet %s: %w", link, TableName, err)
	}
	table, err = t.Exists(context.Background())
	return "", table, err
}

// Closed reports whether links that the agent does not know pass nothing in the process's network namespace; false
// without a table, and while the cluster has no policies.
func Closed() (bool, error) {
	t := nft.NewOwned(nil, TableName)
	defer t.Close()
	return isClosed(t)
}

func isClosed(t *nft.Owned) (bool, error) {
	_, err := t.Get(context.Background(), closed, closedElements[0].First)
	if netlinkx.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look into set %s of nftables table inet %s: %w", closedSet, TableName, err)
	}
	return true, nil
}

// CloseOther closes a link of the process's network namespace, both ways, if the policies of a pod with another UID are
// in force there: the next pod of a StatefulSet has the link of the one before. The agent opens it when it knows the
// pod with this UID. While the cluster has no policies it stays open, and is closed with the first. Without a table, or
// without the link in it, nothing is done.
//
// An ADD that fails and leaves no link must call giveBack: it returns the link to the pod that had it, unless another
// pod has it meanwhile. The names of two pods may give the same link.
func CloseOther(link, uid string) (giveBack func() error, err error) {
	t := nft.NewOwned(nil, TableName)
	defer t.Close()
	var before []nft.Element
	giveBack = func() error { return handBack(link, uid, before) }
	before, err = replaceLinks(t, link, func(element nft.Element) (nft.Element, bool, error) {
		shut, err := isClosed(t)
		next := held{comment: closedFor(uid)}.element(link, shut)
		return next, element.Comment != uid && element != next, err
	})
	if err != nil {
		err = fmt.Errorf("close %s in nftables table inet %s: %w", link, TableName, err)
	}
	return giveBack, err
}

// handBack marks a link as not the pod's for which it was closed: it is closed for the pod for which it was closed
// before, or else is the Ruleset's.
func handBack(link, uid string, before []nft.Element) error {
	if len(before) == 0 {
		return nil
	}
	t := nft.NewOwned(nil, TableName)
	defer t.Close()
	comment := givenBack
	if strings.HasPrefix(before[0].Comment, closedFor("")) {
		comment = before[0].Comment
	}
	_, err := replaceLinks(t, link, func(element nft.Element) (nft.Element, bool, error) {
		ours := element.Comment == closedFor(uid)
		element.Comment = comment
		return element, ours, nil
	})
	if err != nil {
		return fmt.Errorf("give back %s in nftables table inet %s: %w", link, TableName, err)
	}
	return nil
}

// replaceLinks replaces the elements of a link, if there are any, in one transaction, and returns the replaced ones. If
// the agent or another ADD changes them after the read, they are read again.
func replaceLinks(t *nft.Owned, link string,
	by func(nft.Element) (next nft.Element, replace bool, err error)) (before []nft.Element, err error) {
	err = t.Exchange(context.Background(), func(c *nft.Change) error {
		before = nil
		for _, set := range linkSets {
			element, err := t.Get(context.Background(), set, nft.LinkKey(link))
			if netlinkx.IsNotExist(err) {
				continue
			}
			if err != nil {
				return err
			}
			next, replace, err := by(element)
			if err != nil {
				return err
			}
			if replace {
				c.Delete(set, []nft.Element{element})
				c.Add(set, []nft.Element{next})
				before = append(before, element)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return before, nil
}

// Hold makes the table of the process's network namespace if there is none: nothing passes links with names that begin
// with linkPrefix until an Engine has synchronized.
func Hold(linkPrefix string) error {
	t := nft.NewOwned(nil, TableName)
	defer t.Close()
	c := t.Change()
	c.MakeTable(true)
	for _, s := range baseSets() {
		c.MakeSet(s)
		c.Add(s, s.Elements)
	}
	c.Add(closed, closedElements)
	for _, chain := range baseChains(linkPrefix) {
		c.MakeChain(chain)
		c.AddRules(chain)
	}
	if err := t.Commit(context.Background(), c); err != nil && !netlinkx.IsExist(err) {
		return fmt.Errorf("make nftables table inet %s: %w", TableName, err)
	}
	return nil
}
