package datastore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/datastore"
)

// Another writer comes first once: the object is read again, and the decision made anew.
func ExampleRetry() {
	revision := 7
	err := datastore.Retry(context.Background(), 5, time.Millisecond, 10*time.Millisecond, func() error {
		read := revision // Get; then decide
		if revision == 7 {
			revision = 8 // by the other writer
		}
		if read != revision { // Update compares the revisions
			return fmt.Errorf("%w: revision %d was read, %d is there", datastore.ErrConflict, read, revision)
		}
		fmt.Println("written over revision", read)
		return nil
	})
	fmt.Println(err)

	err = datastore.Retry(context.Background(), 2, time.Millisecond, 10*time.Millisecond, func() error { return datastore.ErrConflict })
	fmt.Println(err)
	// Output:
	// written over revision 8
	// <nil>
	// given up after 2 tries: changed by another writer
}
