/*
 * Runs a function in a child process, one machine instruction at a time, and calls a check between all of
 * them. Memory that both processes map shared then has every state that a SIGKILL could leave behind.
 */
#pragma once

/* Return: the number of instructions; -1: this system does not allow ptrace(2), skip the test. Asserts. */
long steps_run(void (*work)(void), void (*check)(void));
