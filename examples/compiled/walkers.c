/* Random walkers on a ring of N sites, which coalesce when they meet.
   ./walkers N STEPS SEED prints how many walkers are left after 1, 2, 4, 8, ... steps, as CSV. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 takes every 64-bit seed. */
static uint64_t state;

static uint64_t next(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: walkers N STEPS SEED\n");
        return 2;
    }
    long n = atol(argv[1]), steps = atol(argv[2]);
    state = strtoull(argv[3], NULL, 10);
    if (n < 3 || steps < 1) {
        fprintf(stderr, "walkers: needs N >= 3 and STEPS >= 1, not %ld and %ld\n", n, steps);
        return 2;
    }
    char *here = malloc(n), *there = malloc(n);
    if (here == NULL || there == NULL) {
        fprintf(stderr, "walkers: no memory for %ld sites\n", n);
        return 1;
    }
    memset(here, 1, n);
    printf("step,walkers\n");
    for (long step = 1, shown = 1; step <= steps; step++) {
        memset(there, 0, n);
        for (long i = 0; i < n; i++)
            if (here[i])
                there[(next() >> 63) ? (i + 1) % n : (i + n - 1) % n] = 1;
        char *swap = here;
        here = there;
        there = swap;
        if (step == shown) {
            long walkers = 0;
            for (long i = 0; i < n; i++)
                walkers += here[i];
            printf("%ld,%ld\n", step, walkers);
            shown *= 2;
        }
    }
    return 0;
}
