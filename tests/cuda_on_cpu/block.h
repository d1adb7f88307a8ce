/* Between the files of this folder: what cuda_on_cpu.cpp, which runs threads, and hopper.cpp, for whose
 * operations they wait, ask of each other. */
#pragma once

/* Leaves the running thread until @ready; looked at each time around. */
void on_cpu_wait_until(bool (*ready)(const void *what), const void *what);

/* Before a block's first thread and after its last. */
void hopper_block_begin(unsigned n_threads);
void hopper_block_end();

/* No thread can go on: delivers one copy, the youngest, so that no order is relied on. False: none is in
 * flight. */
bool hopper_deliver();
