/* What the tests of gw.native call. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *seen[4];

/* Where the last call found its arrays. */
int64_t address(int which) { return (int64_t)(intptr_t)seen[which]; }

void cube(int n, const double *x, double *y)
{
    seen[0] = (void *)x;
    seen[1] = y;
    for (int i = 0; i < n; i++) y[i] = x[i] * x[i] * x[i];
}

void cube_vjp(int n, const double *x, const double *g, double *out)
{
    for (int i = 0; i < n; i++) out[i] = 3 * x[i] * x[i] * g[i];
}

void cube_hvp(int n, const double *x, const double *g, const double *t, double *out)
{
    for (int i = 0; i < n; i++) out[i] = 6 * x[i] * g[i] * t[i];
}

void cube_f4(int n, const float *x, float *y)
{
    for (int i = 0; i < n; i++) y[i] = x[i] * x[i] * x[i];
}

/* A matrix of n rows and m columns, its rows one after the other (c), or its columns (f). */
void apply_c(int n, int m, const double *a, const double *x, double *y)
{
    seen[0] = (void *)a;
    for (int i = 0; i < n; i++) {
        y[i] = 0;
        for (int j = 0; j < m; j++) y[i] += a[i * m + j] * x[j];
    }
}

void apply_f(int n, int m, const double *a, const double *x, double *y)
{
    seen[0] = (void *)a;
    for (int i = 0; i < n; i++) {
        y[i] = 0;
        for (int j = 0; j < m; j++) y[i] += a[i + j * n] * x[j];
    }
}

void apply_vjp(int n, int m, const double *a, const double *x, const double *g, double *grad_a, double *grad_x)
{
    memset(grad_x, 0, m * sizeof(double));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            grad_a[i * m + j] = g[i] * x[j];
            grad_x[j] += a[i * m + j] * g[i];
        }
}

void apply_jvp(int n, int m, const double *a, const double *x, const double *ta, const double *tx, double *t)
{
    for (int i = 0; i < n; i++) {
        t[i] = 0;
        for (int j = 0; j < m; j++) t[i] += ta[i * m + j] * x[j] + a[i * m + j] * tx[j];
    }
}

/* a[i][j] is 10 i + j, its columns one after the other. */
void table_f(int n, int m, double *a)
{
    seen[1] = a;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) a[i + j * n] = 10 * i + j;
}

double dot(int64_t n, const double *x, const double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* Sum and sum of squares. */
void moments(int n, const double *x, double *first, double *second)
{
    *first = *second = 0;
    for (int i = 0; i < n; i++) {
        *first += x[i];
        *second += x[i] * x[i];
    }
}

void moments_vjp(int n, const double *x, double g1, double g2, double *out)
{
    for (int i = 0; i < n; i++) out[i] = g1 + 2 * x[i] * g2;
}

double gauss(double x, double width) { return exp(-x * x / (2 * width * width)); }

/* In place. */
void scale(const int *n, const double *by, double *x, int *info)
{
    *info = *by == 0 ? -3 : 0;
    for (int i = 0; i < *n; i++) x[i] *= *by;
}

int positive_root(int n, const double *x, double *y)
{
    for (int i = 0; i < n; i++) {
        if (x[i] < 0) return 2;
        y[i] = sqrt(x[i]);
    }
    return n > 3 ? 1 : 0;
}

void gather_i4(int n, int m, const double *x, const int *at, double *y)
{
    for (int i = 0; i < m; i++) y[i] = at[i] >= 0 && at[i] < n ? x[at[i]] : NAN;
}

void gather_i8(int n, int m, const double *x, const int64_t *at, double *y)
{
    for (int i = 0; i < m; i++) y[i] = at[i] >= 0 && at[i] < n ? x[at[i]] : NAN;
}

void largest(int n, const double *x, int64_t *where, double *value)
{
    *where = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > x[*where]) *where = i;
    *value = x[*where];
}

void differences(int n, int m, const double *x, double *work, double *y)
{
    memcpy(work, x, n * sizeof(double));
    for (int i = 0; i < m; i++) y[i] = work[i + 1] - work[i];
}

/* Believes that it may. */
void writes(int n, double *x, double *y)
{
    for (int i = 0; i < n; i++) y[i] = x[i]++;
}

static volatile int inside, most;

/* How many were in it at once, at most; it stays for 20 ms. */
void meet(int n, const double *x, double *y)
{
    int now = __sync_add_and_fetch(&inside, 1);
    if (now > most) most = now;
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, 0);
    for (int i = 0; i < n; i++) y[i] = x[i];
    __sync_sub_and_fetch(&inside, 1);
}

int met(void) { return most; }

void crash(int n, const double *x, double *y)
{
    for (int i = 0; i < n; i++) y[i] = x[i];
    if (n && x[0] < 0) abort();
}
