package selector_test

import (
	"fmt"

	"github.com/tortie-net/tortie/internal/api/selector"
)

func ExampleParse() {
	s, err := selector.Parse("app == 'web' && tier in {'front', 'edge'} && !has(legacy)")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Keys())
	fmt.Println(s.Matches(map[string]string{"app": "web", "tier": "edge"}))
	fmt.Println(s.Matches(map[string]string{"app": "web", "tier": "edge", "legacy": ""}))

	_, err = selector.Parse("app = 'web'")
	fmt.Println(err)
	// Output:
	// [app legacy tier]
	// true
	// false
	// selector "app = 'web'": at character 5: unexpected '='
}
