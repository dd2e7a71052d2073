#include "reads/read_threads.h"

#include <pthread.h>
#include <signal.h>

#include "base/mem.h"

enum { STACK_BYTES = 256 * 1024 };

struct pst_read_threads {
    pthread_mutex_t mutex;
    pthread_cond_t work; /* something was queued, or all are to end */
    pthread_cond_t done;
    pst_read *first; /* queued, in the order in which they came */
    pst_read *last;
    pst_read *over;
    int32_t n_queued;
    int32_t idle;
    int32_t n;
    int32_t most;
    int ends;
    pthread_t threads[];
};

static pst_read *take_queued(pst_read_threads *t) {
    pst_read *r = t->first;
    if (r) {
        t->first = r->next;
        t->n_queued--;
    }
    return r;
}

static void *run(void *arg) {
    pst_read_threads *t = arg;
    pthread_mutex_lock(&t->mutex);
    for (;;) {
        pst_read *r = take_queued(t);
        if (r) {
            pthread_mutex_unlock(&t->mutex);
            pst_read_run(r);
            pthread_mutex_lock(&t->mutex);
            r->next = t->over;
            t->over = r;
            pthread_cond_signal(&t->done);
        } else if (t->ends) {
            break;
        } else {
            t->idle++;
            pthread_cond_wait(&t->work, &t->mutex);
            t->idle--;
        }
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

pst_status pst_read_threads_create(int32_t most, pst_read_threads **threads) {
    pst_read_threads *t = pst_calloc(1, sizeof *t + (size_t)most * sizeof(pthread_t));
    if (!t)
        return PST_NO_MEMORY;
    t->most = most;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    *threads = t;
    return PST_OK;
}

void pst_read_threads_destroy(pst_read_threads *t) {
    if (!t)
        return;
    pthread_mutex_lock(&t->mutex);
    t->ends = 1;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->mutex);
    for (int32_t i = 0; i < t->n; i++)
        pthread_join(t->threads[i], NULL);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->mutex);
    pst_free(t);
}

void pst_read_threads_forget(pst_read_threads *t) {
    pst_free(t);
}

static void start_thread(pst_read_threads *t) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes))
        return;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&t->threads[t->n], &attributes, run, t) == 0)
        t->n++;
    else
        t->most = t->n;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

void pst_read_threads_queue(pst_read_threads *t, pst_read *r) {
    pthread_mutex_lock(&t->mutex);
    r->next = NULL;
    if (t->first)
        t->last->next = r;
    else
        t->first = r;
    t->last = r;
    t->n_queued++;
    int start = t->n_queued > t->idle && t->n < t->most;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
    if (start)
        start_thread(t);
}

pst_read *pst_read_threads_next(pst_read_threads *t) {
    pst_read *r;
    pthread_mutex_lock(&t->mutex);
    while (!t->over && t->n)
        pthread_cond_wait(&t->done, &t->mutex);
    r = t->over;
    if (r)
        t->over = r->next;
    else
        r = take_queued(t);
    pthread_mutex_unlock(&t->mutex);
    if (r && !t->n)
        pst_read_run(r);
    return r;
}
