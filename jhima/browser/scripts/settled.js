// Resolves with the page's HTTP status (0: unknown) once the page is quiet, or after `cap` ms.
//
// Quiet means: it is loaded, runs no transition that ends and no short timer, and has not changed
// for `quiet` ms. `acted`: the quiet time starts now, for what just happened may have
// consequences. It is then counted in looks, too, between which the page runs what is due: while
// a busy machine keeps a page from running, nothing changes in it either.
([quiet, cap, acted]) => new Promise(resolve => {
  const begun = performance.now(), activity = window.__activity, every = 10;
  const ends = animation => animation.playState === 'running'
    && isFinite(animation.effect?.getComputedTiming().endTime);
  let last = begun, looks = 0;
  const look = () => {
    const now = performance.now(), since = Math.max(activity?.changed ?? 0, acted ? begun : 0);
    looks = since === last ? looks + 1 : 0;
    last = since;
    const quieted = document.readyState === 'complete' && now - since >= quiet
      && (!acted || looks * every >= quiet)
      && !activity?.timers.size && !document.getAnimations().some(ends);
    if (!quieted && now - begun < cap)
      return (activity?.setTimeout ?? setTimeout).call(window, look, every);
    if (activity) {
      activity.budget = 4;
      if (!quieted) activity.timers.clear();
    }
    resolve(performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0);
  };
  look();
})
