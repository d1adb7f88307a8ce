/* The interface between cuda_on_cpu.cpp, which runs the threads of a block, and
 * hopper.cpp, whose operations wait. */
#pragma once

/* Suspends the running thread until @ready, which is checked whenever the thread could run. */
void on_cpu_wait_until(bool (*ready)(const void *what), const void *what);

/* Called before the first thread of a block and after the last one. */
void hopper_block_begin(unsigned n_threads);
void hopper_block_end();

/* Called when no thread can continue: delivers one copy, the youngest, so that kernels cannot rely on an
 * order. False: no copy is in flight. */
bool hopper_deliver();
