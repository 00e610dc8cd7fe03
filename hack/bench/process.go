package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc/PID/stat (USER_HZ, which is 100 on every architecture that Go supports).
const clockTick = 10 * time.Millisecond

// processorTime returns the CPU time of a process.
func processorTime(pid int) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, fmt.Errorf("a program has ended: %w", err)
	}
	return time.Duration(fields[10]+fields[11]) * clockTick, nil
}

// stat returns the numbers of /proc/PID/stat after the program's name and its state: the first is the parent.
func stat(pid int) ([]int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	var numbers []int
	for i, field := range strings.Fields(rest) {
		if i == 0 {
			continue // the state
		}
		n, _ := strconv.Atoi(field) // some overflow int and are not used
		numbers = append(numbers, n)
	}
	if len(numbers) < 13 {
		return nil, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	return numbers, nil
}

// descendants returns the child processes of a process, recursively.
func descendants(root int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if fields, err := stat(pid); err == nil { // otherwise it has exited
			parents[pid] = fields[0]
		}
	}
	var found []int
	for pid := range parents {
		for up := parents[pid]; up != 0; up = parents[up] {
			if up == root {
				found = append(found, pid)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}
