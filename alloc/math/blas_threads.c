/* See blas_threads.h. */
#include "alloc/math/blas_threads.h"

#include <cblas.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned n_scopes; /* that are open; under the lock */
static int before;        /* threads of OpenBLAS before the first of them; under the lock */

int blas_threads_single(void)
{
    (void) pthread_mutex_lock(&lock);
    if (n_scopes++ == 0) {
        before = openblas_get_num_threads();
        if (before != 1)
            openblas_set_num_threads(1);
    }
    (void) pthread_mutex_unlock(&lock);
    return 0;
}

void blas_threads_restore(const int *unused)
{
    (void) unused;
    (void) pthread_mutex_lock(&lock);
    if (--n_scopes == 0 && before != 1)
        openblas_set_num_threads(before);
    (void) pthread_mutex_unlock(&lock);
}
