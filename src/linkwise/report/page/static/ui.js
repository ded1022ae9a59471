// Of `linkwise ui`: the inputs, and the page for them in place of the one that is shown.

const token = new URLSearchParams(location.search).get("token") || "";

function inputs(form) {
  const asked = { settings: {} };
  for (const field of form.elements) {
    if (!field.name) continue;
    const { kind } = field.dataset;
    const text = field.value.trim();
    if (["model", "on", "engine"].includes(field.name)) asked[field.name] = text;
    else if (kind === "bool") { if (field.checked) asked.settings[field.name] = true; }
    else if (text) asked.settings[field.name] = kind === "str" || Number.isNaN(Number(text)) ? text : Number(text);
  }
  return asked;
}

async function recompute(event) {
  event.preventDefault();
  const form = event.target, says = $("ui-says"), button = form.querySelector("button");
  button.disabled = true;
  says.className = "soft";
  says.textContent = "computing ...";
  try {
    const answer = await fetch("/page", { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(inputs(form)) });
    const found = await answer.json();
    if (answer.ok) load(found);
    says.className = answer.ok ? "soft" : "error";
    says.textContent = answer.ok ? "computed" : found.error;
  } catch {
    says.className = "error";
    says.textContent = "linkwise ui does not answer: it has ended, or its address is another one now";
  }
  button.disabled = false;
}

addEventListener("DOMContentLoaded", () => { $("inputs").onsubmit = recompute; });
